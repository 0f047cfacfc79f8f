"""Faults in real torch processes over gloo, captured as the supervisor captures them, with the truth known."""
