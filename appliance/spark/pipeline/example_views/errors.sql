-- Lines, and those with an error level, by service and minute.
--
-- window: 1m
-- keys: topic, service
select start, topic, service, count(*) as lines,
       count_if(level in ('emerg', 'alert', 'crit', 'error')) as errors,
       count_if(level in ('emerg', 'alert', 'crit', 'error')) / count(*) as error_rate
from events
where rejected is null
group by start, topic, service
