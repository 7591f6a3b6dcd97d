-- Lines and rejected lines by topic and hour.
--
-- window: 1h
-- keys: topic
-- parts: counted
with counted as (
    select start, topic, count(*) as n, count(rejected) as bad
    from events
    group by start, topic
)
select start, topic, sum(n) as lines, sum(bad) as rejected
from counted
group by start, topic
