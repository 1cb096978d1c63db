-- Kernel names with their time.
-- One row per name that ran on a rank: kernel_name, the name; kernel_ns, the sum of its durations over the ranks in
-- the answer, ns. Copies and memsets are in, under the names that nsys gives them; whole graphs are not, since no
-- rule can place what is inside them. Largest time first, then by name.

-- name: names
SELECT k.name AS kernel_name, sum(e.end_ns - e.start_ns)::BIGINT AS kernel_ns
FROM event e JOIN kernel_name k USING (name_id)
WHERE e.rank IN (SELECT unnest($ranks::INTEGER[])) AND e.kind <> 3
GROUP BY k.name
ORDER BY kernel_ns DESC, kernel_name;
