"""What must hold: pure functions from one write of the database to violations, in words.

A `Write` has what was asked and answered, and the rows before it and after. The witness calls every rule after every
write, whoever asked for it and whatever became of the answer. `runs.py`, `threads.py`, `logs.py` and `tries.py` say
what rows may become; `commits.py`, `claims.py`, `starts.py`, `takeovers.py` and `operators.py` what a verb may do and
answer.
"""
