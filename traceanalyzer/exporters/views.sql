-- Views of the exported database, each after a line with its name.
-- $START is the time of the first event, $CALLS the kinds of launch calls.

-- view: events_readable
SELECT
  e.id AS event,
  (e.ts - $START) / 1e9 AS start_s,
  e.dur / 1e3 AS dur_us,
  e.kind,
  e.category,
  n.name,
  e.rank,
  e.pid,
  e.tid,
  (SELECT label FROM lanes AS l
   WHERE l.pid = e.pid AND l.tid IS NULL AND l.rank IS e.rank) AS process,
  (SELECT label FROM lanes AS l
   WHERE l.pid = e.pid AND l.tid = e.tid AND l.rank IS e.rank) AS thread,
  e.device,
  e.stream,
  e.correlation,
  e.bytes,
  e.weight
FROM events AS e LEFT JOIN names AS n ON n.id = e.name_id

-- view: event_summary
SELECT g.kind, n.name, g.events, g.total_ns, g.mean_ns, g.min_ns, g.max_ns
FROM (
  SELECT kind, name_id, COUNT(*) AS events, SUM(dur) AS total_ns, AVG(dur) AS mean_ns,
    MIN(dur) AS min_ns, MAX(dur) AS max_ns
  FROM events GROUP BY kind, name_id
) AS g LEFT JOIN names AS n ON n.id = g.name_id
ORDER BY g.total_ns DESC

-- view: kernel_summary
SELECT n.name, g.kernels, g.total_ns, 1.0 * g.total_ns / SUM(g.total_ns) OVER () AS total_frac,
  g.mean_ns, g.min_ns, g.max_ns
FROM (
  SELECT name_id, COUNT(*) AS kernels, SUM(dur) AS total_ns, AVG(dur) AS mean_ns,
    MIN(dur) AS min_ns, MAX(dur) AS max_ns
  FROM events WHERE kind = 'kernel' GROUP BY name_id
) AS g LEFT JOIN names AS n ON n.id = g.name_id
ORDER BY g.total_ns DESC

-- view: collectives_readable
SELECT c.event, (e.ts - $START) / 1e9 AS start_s, e.dur / 1e3 AS dur_us, e.kind, n.name, e.rank,
  e.device, e.stream, c.collective, c.dtype, c.elements_in, c.elements_out,
  c."group" AS process_group, c.group_size, r.name AS group_ranks, c.seq, c.peer
FROM collectives AS c
JOIN events AS e ON e.id = c.event
LEFT JOIN names AS n ON n.id = e.name_id
LEFT JOIN names AS r ON r.id = c.group_ranks_id

-- view: launches
SELECT work.id AS work, work.kind, worked.name, call.id AS call, called.name AS call_name,
  work.rank, call.pid, call.tid, work.device, work.stream,
  (call.ts - $START) / 1e9 AS call_s, call.dur / 1e3 AS call_us,
  (work.ts - call.ts) / 1e3 AS to_start_us, work.dur / 1e3 AS dur_us
FROM events AS work
JOIN events AS call ON call.correlation = work.correlation AND call.rank IS work.rank
  AND (work.pid IS NULL OR call.pid = work.pid)
LEFT JOIN names AS worked ON worked.id = work.name_id
LEFT JOIN names AS called ON called.id = call.name_id
WHERE work.kind IN ('kernel', 'gpu_memcpy', 'gpu_memset')
  AND call.kind IN ($CALLS)

-- view: counters_readable
SELECT (c.ts - $START) / 1e9 AS at_s, n.name, s.name AS series, c.rank, c.pid, c.value
FROM counters AS c
LEFT JOIN names AS n ON n.id = c.name_id
LEFT JOIN names AS s ON s.id = c.series_id

-- view: sampled_functions
SELECT n.name, f.name AS file, g.samples, g.weight
FROM (
  SELECT s.name_id, s.file_id, COUNT(*) AS samples, SUM(e.weight) AS weight
  FROM events AS e JOIN stacks AS s ON s.id = e.stack
  WHERE e.kind = 'sample' GROUP BY s.name_id, s.file_id
) AS g
LEFT JOIN names AS n ON n.id = g.name_id
LEFT JOIN names AS f ON f.id = g.file_id
ORDER BY g.weight DESC

-- view: folded_stacks
SELECT g.stack, g.samples, g.weight, (
  WITH RECURSIVE up(parent, folded) AS (
    SELECT s.parent, n.name
    FROM stacks AS s JOIN names AS n ON n.id = s.name_id WHERE s.id = g.stack
    UNION ALL
    SELECT s.parent, n.name || ';' || up.folded
    FROM up JOIN stacks AS s ON s.id = up.parent JOIN names AS n ON n.id = s.name_id
  )
  SELECT folded FROM up WHERE parent IS NULL
) AS folded
FROM (
  SELECT stack, COUNT(*) AS samples, SUM(weight) AS weight
  FROM events WHERE kind = 'sample' AND stack IS NOT NULL GROUP BY stack
) AS g
ORDER BY g.weight DESC
