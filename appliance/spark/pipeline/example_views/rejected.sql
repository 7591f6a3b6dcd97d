-- Lines that no parser took, by reason and hour.
--
-- window: 1h
-- keys: topic, reason
select start, topic, regexp_replace(rejected, ' \\(byte \\d+\\)| for the field .*$', '') as reason, count(*) as lines
from events
where rejected is not null
group by start, topic, regexp_replace(rejected, ' \\(byte \\d+\\)| for the field .*$', '')
