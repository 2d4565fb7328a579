-- name: set_lane
-- What an operator set of a lane.
UPDATE lane SET paused = :paused, live_limit = :live_limit WHERE name = :name;

-- name: set_dataset
-- What an operator set of a dataset.
UPDATE dataset SET paused = :paused, live_priority = :live_priority WHERE name = :name;

-- name: set_setting
-- One live setting.
INSERT INTO setting (key, value, set_by, set_ms) VALUES (:key, :value, :uid, :now)
ON CONFLICT (key) DO UPDATE
SET value = excluded.value, set_by = excluded.set_by, set_ms = excluded.set_ms;

-- name: settings
-- All live settings.
SELECT key, value FROM setting ORDER BY key;

-- name: insert_event
-- Something an operator acts upon.
INSERT INTO event (at_ms, kind, subject, detail, uid, undo)
VALUES (:now, :kind, :subject, :detail, :uid, :undo)
RETURNING seq;

-- name: prune_events
-- Keep the newest events only.
DELETE FROM event WHERE seq <= :upto;

-- name: events_after
-- Events in order.
SELECT seq, at_ms, kind, subject, detail, uid FROM event WHERE seq > :after ORDER BY seq LIMIT :n;

-- name: last_undoable
-- The newest change that can be taken back.
SELECT seq, kind, subject, detail, undo FROM event WHERE undo IS NOT NULL ORDER BY seq DESC LIMIT 1;

-- name: mark_undone
-- A change is taken back once.
UPDATE event SET undo = NULL WHERE seq = :seq;

-- name: sample_for_change
-- What decides whether an operator may retry or reject a sample.
SELECT id, state, n_prompt, reason FROM sample WHERE id = :id;

-- name: retry_sample
-- Queue a given-up sample again, its charges forgiven.
UPDATE sample
SET state = 0, rank = 0, failures = 0, crashes = 0, n_output = NULL, output_crc = NULL,
    finish = NULL, server = NULL, elapsed_ms = NULL, extended = 0, checked = 0, reason = NULL,
    detail = NULL, updated_ms = :now
WHERE id = :id AND state IN (7, 8) AND lane_id IS NOT NULL AND n_prompt IS NOT NULL;

-- name: delete_answer
-- An answer that is asked for again goes in the same transaction.
DELETE FROM answer WHERE id = :id;

-- name: retry_states
-- Extract a sample again whose states were unusable; its answer stays.
UPDATE sample SET state = 3, reason = NULL, detail = NULL, updated_ms = :now
WHERE id = :id AND state = 7 AND reason = 'bad_states' AND n_output IS NOT NULL;

-- name: previous_turn
-- The turn before this one, if its answer can be rendered from again.
SELECT p.id, p.state FROM sample AS p
WHERE p.conversation_id = (SELECT conversation_id FROM sample WHERE id = :id)
    AND p.turn < (SELECT turn FROM sample WHERE id = :id)
ORDER BY p.turn DESC LIMIT 1;

-- name: wait_again
-- A turn that never had a prompt waits for its predecessor again.
UPDATE sample SET state = 6, reason = NULL, detail = NULL, updated_ms = :now
WHERE id = :id AND state IN (8, 9) AND n_prompt IS NULL;

-- name: uncheck
-- Render the next turn from this answer again.
UPDATE sample SET checked = 0, updated_ms = :now WHERE id = :id AND state = 3;

-- name: revive_later
-- Turns cancelled for their predecessor's sake wait again.
UPDATE sample SET state = 6, reason = NULL, detail = NULL, updated_ms = :now
WHERE conversation_id = (SELECT conversation_id FROM sample WHERE id = :id)
    AND turn > (SELECT turn FROM sample WHERE id = :id) AND state = 9;

-- name: reject_sample
-- An operator leaves a sample out.
UPDATE sample
SET state = 8, not_before_ms = NULL, shard_id = NULL, shard_index = NULL, reason = :reason,
    detail = :detail, updated_ms = :now
WHERE id = :id AND state IN (0, 2, 3, 5, 6);

-- name: wake_one
-- An operator ends a wait.
UPDATE sample SET state = 0, rank = 0, not_before_ms = NULL, updated_ms = :now
WHERE id = :id AND state = 2;
