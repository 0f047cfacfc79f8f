"""What does every part of the package speak of?

* `model` has the six nouns as frozen values: signal, incident, verdict, plan, action, attempt. `mode` says whether
  plans are carried out.
* `text` cuts, joins and cleans texts such as a drain reason.
* `training_time` divides the time of a training, and `spent_time` has the categories and the ratio (ETTR).
* `build` tells which build of the package runs.
"""
