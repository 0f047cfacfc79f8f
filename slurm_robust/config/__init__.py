"""What did the site choose?

`site` reads the YAML file into one typed object, and has most sections with their defaults and units. The other
sections have a module each: `http` (the daemon's pages), `notify` (messages to people), `repair` (repairs of drained
nodes), `report` (reports) and `supervise` (supervision of jobs). `file` says where the YAML file is, and `yaml_lines`
on which line of it a value stands, for errors.
"""
