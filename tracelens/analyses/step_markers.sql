-- Evidence for where steps begin. Times are ns on the export's host clock.

-- name: ranges
-- One row per NVTX range or mark whose text matches. Order: process, thread, start, text.
SELECT process, thread, start_ns, text
FROM nvtx
WHERE regexp_matches(text, $pattern)
ORDER BY process, thread, start_ns, end_ns, text

-- name: sample_texts
-- One row per frequent range text, to show what there was when a pattern matched nothing. Order: count, text.
SELECT text, count(*) AS range_count FROM nvtx WHERE text IS NOT NULL
GROUP BY text ORDER BY range_count DESC, text LIMIT 5

-- name: names_matching
-- One row per kernel name that matches. Order: name_id.
SELECT name_id, name FROM kernel_name WHERE regexp_matches(name, $pattern) ORDER BY name_id

