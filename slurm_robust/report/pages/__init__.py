"""What do people see of a cluster's past, and of one incident?

`assemble` turns facts and figures into a `view`: the whole content of the page, as small frozen values with raw
numbers. A function of `sections` makes each section of it. `page` (HTML, with `plots` as SVG), `markdown` and `as_json`
write the same view down. For one incident `incident_assemble`, `incident_view` and `incident_page` do the same, with
`rank_rows` for the activity of each rank. All pages share `document` (head, style, tables), `formats` (numbers and
times as text) and `markup`, through which every text from outside goes. Pure: the functions return text, and read
nothing.

The plots are drawn here and not by a plotting library: the page must be read without scripts, follow dark and light,
and stay below a few MB; six kinds of plots take less code than a library's options would.
"""
