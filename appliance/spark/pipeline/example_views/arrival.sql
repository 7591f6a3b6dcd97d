-- How long after its own time a line arrived in the log, in seconds: half, 90 % and 99 % of the lines are below.
--
-- window: 1h
-- keys: topic
select start, topic, count(*) as lines,
       percentile_approx(unix_micros(received) - unix_micros(time), array(0.5, 0.9, 0.99), 10000)[0] / 1e6 as p50,
       percentile_approx(unix_micros(received) - unix_micros(time), array(0.5, 0.9, 0.99), 10000)[1] / 1e6 as p90,
       percentile_approx(unix_micros(received) - unix_micros(time), array(0.5, 0.9, 0.99), 10000)[2] / 1e6 as p99
from events
where rejected is null
group by start, topic
