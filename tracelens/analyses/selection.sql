-- The selection: which part of each rank's time is looked at, as windows on the export's own time.

-- name: spans
-- One row per rank in the answer: rank, start_ns of its first event, end_ns of its last one (zero-length events extend
-- no span; a rank with no others spans nothing).
SELECT rank, coalesce(min(start_ns) FILTER (end_ns > start_ns), min(start_ns)) AS start_ns,
    coalesce(max(end_ns) FILTER (end_ns > start_ns), min(start_ns)) AS end_ns
FROM event_row WHERE rank IN (SELECT unnest($ranks::INTEGER[]))
GROUP BY rank ORDER BY rank;

-- name: whole_events
-- Every event of the ranks in the answer, as it is, in the order that decides who owns an instant.
SELECT rank, name_id, start_ns, end_ns FROM event_row;

-- name: clipped_events
-- Every part of an event inside a window: rank, name_id, start_ns, end_ns (clipped), counted (whether the event starts
-- in the window), in the order of the windows and within each in the order that decides who owns an instant.
SELECT e.rank, e.name_id, greatest(e.start_ns, w.start_ns) AS start_ns, least(e.end_ns, w.end_ns) AS end_ns,
    e.start_ns >= w.start_ns AS counted
FROM event e JOIN selected_window w
    ON e.rank = w.rank AND e.start_ns < w.end_ns AND (e.end_ns > w.start_ns OR e.start_ns = w.start_ns)
ORDER BY e.rank, w.start_ns, e.event_id;
