-- From the rows of one export's NVTX table to the tables of `ranges`, the exporter's shift undone.

-- name: stage
INSERT INTO ranges.nvtx_row
SELECT $export, "globalTid", "domainId", if(text IS NULL, "textId", NULL), text, try_cast(start::HUGEINT - $shift_ns AS BIGINT),
    try_cast("end"::HUGEINT - $shift_ns AS BIGINT), "eventType", comm_id, message_bytes
FROM incoming;

-- name: used_texts
-- Numbers of the texts that no row spells itself.
SELECT DISTINCT text_id FROM ranges.nvtx_row WHERE export = $export AND text_id IS NOT NULL ORDER BY text_id;

-- name: kept
SELECT count(*) AS row_count FROM raw_nvtx WHERE export = $export;
