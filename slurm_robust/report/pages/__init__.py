"""What do people see of a cluster's past, and of one incident?

`assemble` turns facts and figures into a `view`: exactly what is shown, as small frozen values with raw numbers.
`page` (HTML, with `plots/` as SVG), `markdown` and `as_json` write the same view down. `incident_view` and
`incident_page` do this for one incident. Pure: text comes out, nothing is read. Every text from outside goes through
`markup.text`.

The plots are drawn here and not by a plotting library: the page must be read without scripts, follow dark and light,
and stay below a few MB; six kinds of plots take less code than a library's options would.
"""
