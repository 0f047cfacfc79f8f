"""What NVIDIA's management library says of the GPUs: read once for all checks, and never waited for without end.

`library` is what is loaded, `session` asks, `fields` names what can be asked, `facts` is what a probe takes along,
`judging` what the judges share, `profiles` what is known of each board.
"""
