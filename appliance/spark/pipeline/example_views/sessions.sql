-- Sessions: activity of a host with less than 30 minutes of silence in it.  They end at midnight UTC, with the window.
--
-- window: 1d
-- keys: host, begun
-- cadence: 5m
-- parts: pieces, sessions
with pieces as (
    select start, host, min(time) as first, max(time) as last, count(*) as n
    from events
    where rejected is null and host is not null
    group by start, host, unix_micros(time) div 600000000 -- lines within ten minutes are of one session
), sessions as (
    select start, host, min(first) as first, max(last) as last, sum(n) as n
    from (
        select *, count_if(first >= before + interval 30 minutes)
                      over (partition by start, host order by first, last) as session
        from (
            select *, max(last) over (partition by start, host order by first, last
                                      rows between unbounded preceding and 1 preceding) as before
            from pieces
        )
    )
    group by start, host, session
)
select start, host, first as begun, last as ended, n as lines
from sessions
