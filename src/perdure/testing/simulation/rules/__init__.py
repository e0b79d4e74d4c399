"""What must hold: pure functions from one write of the database to violations, in words.

A `Write` has what was asked and answered, and the rows before it and after. The witness calls every rule after every
write, whoever asked for it and whatever became of the answer. `runs.py`, `threads.py`, `logs.py`, `tries.py`,
`waits.py`, `questions.py`, `mail.py` and `effects.py` say what rows may become, `outbox.py`, `meters.py` and
`budgets.py` what they must have become, `dispatches.py` which effects may be dispatched; `closings.py` what the
record of a wait must say, `bystanders.py` what a write may do to runs that it is not about; `commits.py`,
`claims.py`, `starts.py`, `takeovers.py`, `cancellations.py`, `forks.py` and `operators.py` what a verb may do and
answer. `batches.py` says which changes of a commit took hold. `annals.py` is what they remember.
"""
