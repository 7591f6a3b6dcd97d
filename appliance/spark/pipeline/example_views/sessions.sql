-- Sessions: activity of a host with less than 30 minutes of silence in it.  They end at midnight UTC, with the window.
--
-- window: 1d
-- keys: host, begun
-- cadence: 5m
-- parts: pieces
with pieces as (
    select start, host, session_window.start as first, max(time) as last, count(*) as n
    from events
    where rejected is null and host is not null
    group by start, host, session_window(time, '30 minutes')
), reached as (
    select *, max(last) over (partition by start, host order by first, last
                              rows between unbounded preceding and 1 preceding) as before
    from pieces
), numbered as (
    select *, count_if(first >= before + interval 30 minutes)
                  over (partition by start, host order by first, last) as session
    from reached
)
select start, host, min(first) as begun, max(last) as ended, sum(n) as lines
from numbered
group by start, host, session
