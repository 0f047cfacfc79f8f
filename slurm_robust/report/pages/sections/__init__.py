"""Which question does each section of the report answer, and with which numbers?

A function a section: facts and figures in, a `view.ReportSection` out. Every section exists for every cluster: where
there is nothing to draw, its answer says so.
"""
