-- How long after its own time a line arrived in the log, in seconds: half, 90 % and 99 % of the lines are below (KLL
-- sketches with k = 1,000: each share is within 0.5 percentage points in 99 of 100 hours).
--
-- window: 1h
-- keys: topic
-- parts: sketched, merged
with sketched as (
    select start, topic, count(*) as n, kll_sketch_agg_bigint(unix_micros(received) - unix_micros(time), 1000) as sketch
    from events
    where rejected is null
    group by start, topic
), merged as (
    select start, topic, sum(n) as n, kll_merge_agg_bigint(sketch) as sketch
    from sketched
    group by start, topic
)
select start, topic, n as lines,
       kll_sketch_get_quantile_bigint(sketch, 0.5) / 1e6 as p50,
       kll_sketch_get_quantile_bigint(sketch, 0.9) / 1e6 as p90,
       kll_sketch_get_quantile_bigint(sketch, 0.99) / 1e6 as p99
from merged
