-- Lines and rejected lines by topic and hour.
--
-- window: 1h
-- keys: topic
-- parts: counted, summed
with counted as (
    select start, topic, count(*) as n, count(rejected) as bad
    from events
    group by start, topic
), summed as (
    select start, topic, sum(n) as n, sum(bad) as bad
    from counted
    group by start, topic
)
select start, topic, n as lines, bad as rejected
from summed
