-- Lines that no parser took, by reason and hour.
--
-- window: 1h
-- keys: topic, reason
-- parts: counted, summed
with counted as (
    select start, topic, regexp_replace(rejected, ' \\(byte \\d+\\)| for the field .*$', '') as reason, count(*) as n
    from events
    where rejected is not null
    group by start, topic, regexp_replace(rejected, ' \\(byte \\d+\\)| for the field .*$', '')
), summed as (
    select start, topic, reason, sum(n) as n
    from counted
    group by start, topic, reason
)
select start, topic, reason, n as lines
from summed
