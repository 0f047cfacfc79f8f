"""What does NVIDIA's management library say of the GPUs? It is read once for all checks, with a time limit.

`library` finds and loads NVML, `session` calls it in a thread of its own, `fields` names what can be asked, and
`fabric` asks about Fabric Manager. `facts` is what a probe takes along as JSON, and `judging` is what the judges of
these facts share. `left_behind` puts back GPU settings that a diagnostic has changed.
"""
