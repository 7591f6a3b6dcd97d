-- Sessions: activity of a host with less than 30 minutes of silence in it.  They end at midnight UTC, with the window.
--
-- window: 1d
-- keys: host, begun
-- cadence: 5m
select start, host, session_window.start as begun, max(time) as ended, count(*) as lines
from events
where rejected is null and host is not null
group by start, host, session_window(time, '30 minutes')
