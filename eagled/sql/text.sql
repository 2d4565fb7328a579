-- name: unchecked_ids
-- Answers that wait for their output check.
SELECT id FROM sample WHERE state = 3 AND checked = 0 ORDER BY id LIMIT :n;

-- name: text_job
-- One answer with its prompt, its conversation and whether a later turn waits for it.
SELECT s.id, s.attempt, d.name, s.turn, s.finish, p.z, s.prompt_crc, s.n_prompt,
    a.z, s.output_crc, s.n_output, c.z, s.conversation_id,
    EXISTS (SELECT 1 FROM sample AS n
            WHERE n.conversation_id = s.conversation_id AND n.turn > s.turn AND n.state = 6)
FROM sample AS s
JOIN dataset AS d ON d.id = s.dataset_id
JOIN conversation AS c ON c.id = s.conversation_id
LEFT JOIN prompt AS p ON p.id = s.id
LEFT JOIN answer AS a ON a.id = s.id
WHERE s.id = :id AND s.state = 3 AND s.checked = 0;

-- name: earlier_answers
-- Packed answers of all turns before this one.
SELECT a.z, s.output_crc, s.n_output FROM sample AS s JOIN answer AS a ON a.id = s.id
WHERE s.conversation_id = :conversation_id AND s.turn < :turn ORDER BY s.turn;

-- name: unchecked_sample
-- The row a verdict is about, if it still waits for one.
SELECT id FROM sample WHERE id = :id AND state = 3 AND checked = 0 AND attempt = :attempt;

-- name: accept_text
-- The answer passed.
UPDATE sample SET checked = 1, updated_ms = :now WHERE id = :id AND state = 3;

-- name: reject_text
-- The answer breaks an output rule.
UPDATE sample SET state = 8, reason = :reason, detail = :detail, updated_ms = :now
WHERE id = :id AND state = 3;

-- name: next_turn
-- The turn that follows, if it waits.
SELECT n.id FROM sample AS n
WHERE n.conversation_id = (SELECT conversation_id FROM sample WHERE id = :id)
    AND n.turn > (SELECT turn FROM sample WHERE id = :id)
ORDER BY n.turn LIMIT 1;

-- name: queue_next
-- A later turn has its prompt and its lane.
UPDATE sample
SET state = 0, rank = 0, lane_id = (SELECT id FROM lane WHERE name = :lane), n_prompt = :n,
    prompt_crc = :crc, updated_ms = :now
WHERE id = :id AND state = 6;

-- name: refuse_next
-- A later turn cannot be asked.
UPDATE sample SET state = 8, reason = :reason, detail = :detail, updated_ms = :now
WHERE id = :id AND state = 6;
