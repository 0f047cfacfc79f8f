"""How did the cluster do?

Facts come in (`facts`, read by `sources`), figures and pages go out. Reads only: nothing here acts on anything.
"""
