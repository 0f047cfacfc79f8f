"""What do the facts mean? Figures with their definitions.

`trainings` joins attempts to trainings and divides their time; `ettr` and `failure_costs` say where it went;
`reliability`, `restarts`, `false_alarms` and `node_events` count failures; `standby_use` judges the pools;
`expected` compares with what a formula predicts; `all_figures` computes everything. Pure: facts in, values out.
A figure that cannot be said is None, never 0, and has a sentence that says why.
"""
