-- What has come in: lines of each partition by hour, what became of them, their offsets, and when the last one came.
--
-- window: 1h
-- keys: topic, partition
select start, topic, partition, count(*) as lines, count(rejected) as rejected,
       min(offset) as first_offset, max(offset) as last_offset, max(received) as last_received
from events
group by start, topic, partition
