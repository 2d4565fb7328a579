-- name: claim_candidates
-- Datasets of an open lane that have queued rows, from the counters.
SELECT l.id, d.id, d.name, ifnull(d.live_priority, d.config_priority), c.n,
    ifnull(d.live_share, 1), d.live_limit,
    (SELECT ifnull(sum(g.n), 0) FROM counter AS g WHERE g.state = 1 AND g.dataset_id = d.id)
FROM lane AS l
JOIN counter AS c ON c.lane_id = l.id AND c.state = 0
JOIN dataset AS d ON d.id = c.dataset_id
WHERE l.name = :lane AND l.paused = 0 AND d.paused = 0 AND c.n > 0;

-- name: claim
-- Take the first queued rows of one dataset in one lane.
UPDATE sample
SET state = 1, attempt = attempt + 1, epoch = :epoch, updated_ms = :now
WHERE id IN (
    SELECT id FROM sample
    WHERE state = 0 AND lane_id = :lane_id AND dataset_id = :dataset_id
    ORDER BY rank, id LIMIT :n
)
RETURNING rank, id, uid, conversation_id, turn, attempt, failures, extended, n_prompt, prompt_crc,
    (SELECT z FROM prompt WHERE prompt.id = sample.id);

-- name: partial_of
-- The ids of an answer that is to be continued.
SELECT z, crc, n FROM partial WHERE id = :id;

-- name: extend_sample
-- A claim's answer has no end yet: queued to be continued, in the lane that its length needs.
UPDATE sample
SET state = 0, rank = 0, epoch = NULL, extended = :extended, failures = 0,
    elapsed_ms = ifnull(elapsed_ms, 0) + :elapsed_ms,
    lane_id = ifnull((SELECT id FROM lane WHERE name = :lane AND configured = 1), lane_id),
    updated_ms = :now
WHERE id = :id AND state = 1;

-- name: keep_partial
-- The ids so far of an answer that is to be continued.
INSERT INTO partial (id, n, crc, z) VALUES (:id, :n, :crc, :z)
ON CONFLICT (id) DO UPDATE SET n = excluded.n, crc = excluded.crc, z = excluded.z;

-- name: fail_damaged
-- Give up a claimed row whose stored prompt is gone.
UPDATE sample SET state = 7, epoch = NULL, reason = 'stored_prompt_missing', updated_ms = :now
WHERE id = :id AND state = 1;

-- name: live_fences
-- Which of these (id, attempt, epoch) still hold their claim.
SELECT s.id, s.attempt, s.epoch, s.uid, s.crashes
FROM json_each(:fences) AS f
CROSS JOIN sample AS s ON s.id = f.value ->> 0
WHERE s.state = 1 AND s.attempt = f.value ->> 1 AND s.epoch = f.value ->> 2;

-- name: complete_sample
-- A claim has its answer.
UPDATE sample
SET state = 3, epoch = NULL, n_output = ?, output_crc = ?, finish = ?, server = ?,
    elapsed_ms = ifnull(elapsed_ms, 0) + ?, extended = ?, checked = 0, updated_ms = ?
WHERE id = ? AND state = 1;

-- name: insert_answer
-- The exact ids of an answer.
INSERT INTO answer (id, z) VALUES (?, ?);

-- name: insert_prompt
-- The exact ids of a prompt.
INSERT INTO prompt (id, z) VALUES (?, ?);

-- name: fail_retry
-- A failed attempt waits for its next try.
UPDATE sample
SET state = 2, rank = 0, epoch = NULL, not_before_ms = :not_before, failures = failures + :charge,
    updated_ms = :now
WHERE id = :id AND state = 1;

-- name: fail_final
-- A failed attempt was the last.
UPDATE sample
SET state = :state, epoch = NULL, failures = failures + :charge, reason = :reason,
    detail = :detail, updated_ms = :now
WHERE id = :id AND state = 1;

-- name: requeue
-- A failed attempt is tried again at once.
UPDATE sample
SET state = 0, rank = 0, epoch = NULL, failures = failures + :charge, updated_ms = :now
WHERE id = :id AND state = 1;

-- name: give_back
-- An interrupted claim goes back to the front of its queue, uncharged.
UPDATE sample SET state = 0, rank = 0, epoch = NULL, crashes = crashes + ?, updated_ms = ?
WHERE id = ? AND state = 1;

-- name: quarantine
-- A sample that was in flight at too many server crashes.
UPDATE sample
SET state = 7, epoch = NULL, crashes = crashes + ?, reason = 'quarantined',
    detail = 'in flight at too many server crashes', updated_ms = ?
WHERE id = ? AND state = 1;

-- name: insert_failure
-- The log of failed attempts.
INSERT INTO failure (sample_id, attempt, at_ms, kind, detail) VALUES (?, ?, ?, ?, ?);

-- name: prune_failures
-- Keep the newest failures only.
DELETE FROM failure WHERE id <= (SELECT max(id) FROM failure) - :keep;

-- name: cancel_later
-- Later turns that can no longer come.
UPDATE sample SET state = 9, reason = 'predecessor', updated_ms = :now
WHERE conversation_id = (SELECT conversation_id FROM sample WHERE id = :id)
    AND turn > (SELECT turn FROM sample WHERE id = :id) AND state = 6;

-- name: due_retries
-- Rows whose wait is over.
SELECT id FROM sample WHERE state = 2 AND not_before_ms <= :now ORDER BY not_before_ms LIMIT 500;

-- name: wake
-- A waiting retry is queued again.
UPDATE sample SET state = 0, rank = 0, not_before_ms = NULL, updated_ms = ?
WHERE id = ? AND state = 2;
