-- From the rows of one export's NVTX table to raw_nvtx: texts and domains named, the exporter's shift undone.

-- name: create
CREATE OR REPLACE TEMP TABLE nvtx_row (
    start BIGINT, "end" BIGINT, kind BIGINT, thread BIGINT, text_id BIGINT, domain BIGINT, text VARCHAR, comm_id UBIGINT,
    message_bytes BIGINT
);
CREATE OR REPLACE TEMP TABLE nvtx_text (id BIGINT, text VARCHAR);
CREATE OR REPLACE TEMP TABLE nvtx_domain (process BIGINT, domain BIGINT, name VARCHAR);

-- name: stage
INSERT INTO nvtx_row SELECT start, "end", "eventType", "globalTid", "textId", "domainId", text, comm_id, message_bytes FROM incoming;

-- name: used_texts
-- Ids of the texts that no row spells itself.
SELECT DISTINCT text_id FROM nvtx_row WHERE text IS NULL AND text_id IS NOT NULL ORDER BY text_id;

-- name: keep
-- A domain whose creation lies outside the capture is NCCL's where its ranges are, else unknown (?).
INSERT INTO raw_nvtx
SELECT $export, r.thread,
    CASE WHEN coalesce(r.domain, 0) = 0 THEN '' ELSE coalesce(d.name, if(starts_with(coalesce(r.text, t.text), 'nccl'), 'NCCL', '?')) END,
    coalesce(r.text, t.text), try_cast(r.start::HUGEINT - $shift_ns AS BIGINT), try_cast(r."end"::HUGEINT - $shift_ns AS BIGINT),
    r.kind, r.comm_id, r.message_bytes
FROM nvtx_row r
LEFT JOIN nvtx_text t ON t.id = r.text_id AND r.text IS NULL
LEFT JOIN nvtx_domain d ON d.process = (r.thread & ~16777215) AND d.domain = r.domain
WHERE r.thread IS NOT NULL AND r.start IS NOT NULL AND coalesce(r.text, t.text) IS NOT NULL
    AND try_cast(r.start::HUGEINT - $shift_ns AS BIGINT) IS NOT NULL;

-- name: drop
DROP TABLE nvtx_row; DROP TABLE nvtx_text; DROP TABLE nvtx_domain;
