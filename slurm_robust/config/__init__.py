"""What did the site choose? One typed object (`site`), a section of it a file, and where the YAML file is."""
