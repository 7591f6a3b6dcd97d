-- What has come in: lines of each partition by hour, what became of them, their offsets, and when the last one came.
--
-- window: 1h
-- keys: topic, partition
-- parts: counted
with counted as (
    select start, topic, partition, count(*) as n, count(rejected) as bad, min(offset) as first, max(offset) as last,
           max(received) as newest
    from events
    group by start, topic, partition
)
select start, topic, partition, sum(n) as lines, sum(bad) as rejected,
       min(first) as first_offset, max(last) as last_offset, max(newest) as last_received
from counted
group by start, topic, partition
