-- What has come in: lines of each partition by hour, what became of them, their offsets, and when the last one came.
--
-- window: 1h
-- keys: topic, partition
-- parts: counted, summed
with counted as (
    select start, topic, partition, count(*) as n, count(rejected) as bad, min(offset) as first, max(offset) as last,
           max(received) as newest
    from events
    group by start, topic, partition
), summed as (
    select start, topic, partition, sum(n) as n, sum(bad) as bad, min(first) as first, max(last) as last,
           max(newest) as newest
    from counted
    group by start, topic, partition
)
select start, topic, partition, n as lines, bad as rejected,
       first as first_offset, last as last_offset, newest as last_received
from summed
