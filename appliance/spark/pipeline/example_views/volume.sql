-- Lines and rejected lines by topic and hour.
--
-- window: 1h
-- keys: topic
select start, topic, count(*) as lines, count(rejected) as rejected
from events
group by start, topic
