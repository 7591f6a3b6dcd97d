-- The ten hosts with the most lines of each hour.  Change `host` to a column of your parsers, as client or path.
--
-- window: 1h
-- keys: host
select start, host, lines, place
from (
    select start, host, count(*) as lines, row_number() over (partition by start order by count(*) desc, host) as place
    from events
    where rejected is null and host is not null
    group by start, host
)
where place <= 10
