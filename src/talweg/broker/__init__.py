"""A broker: carries replicas of partitions, answers the batch API, and does as the primary wishes.

    Broker      the whole process, put together

One file for each family of calls (`calls_*`); what they mean is in `partition`, which knows nothing of HTTP.
"""

from talweg.broker.broker import Broker

__all__ = ["Broker"]
