-- The ten hosts with the most lines of each hour.  Change `host` to a column of your parsers, as client or path.
--
-- window: 1h
-- keys: host
-- parts: counted, summed
with counted as (
    select start, host, count(*) as n
    from events
    where rejected is null and host is not null
    group by start, host
), summed as (
    select start, host, sum(n) as n
    from counted
    group by start, host
)
select start, host, lines, place
from (
    select start, host, n as lines, row_number() over (partition by start order by n desc, host) as place
    from summed
)
where place <= 10
