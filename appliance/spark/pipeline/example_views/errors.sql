-- Lines, and those with an error level, by service and minute.
--
-- window: 1m
-- keys: topic, service
-- parts: counted, summed
with counted as (
    select start, topic, service, count(*) as n, count_if(level in ('emerg', 'alert', 'crit', 'error')) as bad
    from events
    where rejected is null
    group by start, topic, service
), summed as (
    select start, topic, service, sum(n) as n, sum(bad) as bad
    from counted
    group by start, topic, service
)
select start, topic, service, n as lines, bad as errors, bad / n as error_rate
from summed
