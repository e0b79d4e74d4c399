"""The demo: a research team that answers questions over real documents while its workers are killed.

`corpus` reads documents, `ranker` finds and quotes, `questions` asks, `model` speaks to an endpoint, `agents` is the
team itself: an ordinary perdure app. `billing` is the service that it charges, in a process of its own, and `approver`
who stands before a charge. `scene` plays it with real worker processes and a real `kill -9`; `sidelog` is what the step
bodies write about themselves, apart from the store; `report` computes from both what happened, and `reconciliation`
from the store and the service's own file what was charged. `once` is the smallest scene.
Nothing here is part of the library's interface; it uses perdure as a user would.
"""
