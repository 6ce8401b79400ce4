"""What brokers, managers and clients say to each other: the parameters and answers of their calls.

Declared once, so that both ends read the same words; each process still meets the others on the wire alone.

    control     between brokers and managers, in JSON: registration, heartbeats, who leads what
    bundles     between a manager and a broker, in MessagePack: many single messages at once
    plain       what people and clients ask of a manager, in JSON
    batches     what clients ask of a partition's leader: many messages at once, positions
    transactions  what clients ask of leaders, and leaders of each other, to write all of it or nothing

    POST /broker/heartbeat      broker → primary     Heartbeat → HeartbeatAnswer
    POST /admin/broker/add      broker → primary     AddBroker → BrokerAdded
    GET  /v1/metadata           client → manager     → Metadata
    GET  /                      manager → broker     → BrokerFace
    POST /nudge                 primary → broker     send a heartbeat now: something has changed
    GET  /groups/{group}        primary → broker     → GroupAnswer: what it knows of a group that it carries
    POST /bundle/append         manager → broker     list of Append → list of Written or Failed
    POST /bundle/take           manager → broker     list of Take → list of Taken, Moved, Empty or Failed
    POST /bundle/ends           manager → broker     AskEnds → list of Ends or Failed
    POST /bundle/start          manager → broker     list of StartAt → list of Started or Failed
"""

from talweg.protocol import batches, bundles, control, plain, transactions

__all__ = ["batches", "bundles", "control", "plain", "transactions"]
