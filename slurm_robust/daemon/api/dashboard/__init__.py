"""What does a person see in a browser?

* Content: `home` and `incident` make the first page and an incident's page from a snapshot. `nodes` draws the grid of
  nodes, `stages` lists an incident's stages, and `pieces` makes times, links and commands.
* Form: `tree` is a part of a page as a value, which becomes HTML for the first load and JSON for changes; `page` is
  the HTML document around it.
* Serving: `web` answers requests, `live` sends changes to open pages, and `report_files` reads the report's pages.
* Rights: `access` decides who may see the dashboard, and `hiding` takes the names of users and jobs out.

All but `live` and `web` are pure; `access` and `report_files` only read files.
"""
