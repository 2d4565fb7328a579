-- name: set_lane
-- What an operator set of a lane.
UPDATE lane SET paused = :paused, live_limit = :live_limit, live_share = :live_share
WHERE name = :name;

-- name: set_dataset
-- What an operator set of a dataset.
UPDATE dataset
SET paused = :paused, live_priority = :live_priority, live_limit = :live_limit,
    live_share = :live_share
WHERE name = :name;

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

-- name: finish_change
-- An operator's change of samples is complete, and can be taken back.
UPDATE event SET detail = :detail, undo = :undo WHERE seq = :seq;

-- name: sample_for_change
-- What decides whether an operator may change a sample, and what it was before.
SELECT id, state, n_prompt, reason, lane_id, attempt, failures, checked, detail
FROM sample WHERE id = :id;

-- name: keep_old
-- What an operator's change of a sample replaced.
INSERT OR IGNORE INTO changed
    (seq, sample_id, state, lane_id, attempt, failures, checked, reason, detail)
VALUES (:seq, :id, :state, :lane_id, :attempt, :failures, :checked, :reason, :detail);

-- name: changed_by
-- What a change replaced, a slice of it.
SELECT sample_id, state, lane_id, attempt, failures, checked, reason, detail
FROM changed WHERE seq = :seq ORDER BY sample_id LIMIT 200;

-- name: drop_old
-- A change of a sample is taken back once.
DELETE FROM changed WHERE seq = :seq AND sample_id = :id;

-- name: prune_changed
-- Changes whose event is gone cannot be taken back.
DELETE FROM changed WHERE seq <= :upto;

-- name: unretry
-- An operator's retry is taken back, where nothing has come of it.
UPDATE sample
SET state = :state, failures = :failures, reason = :reason, detail = :detail, updated_ms = :now
WHERE id = :id AND state IN (0, 6) AND attempt = :attempt;

-- name: unreject
-- An operator's rejection is taken back; states in a shard are extracted again.
UPDATE sample
SET state = :state, checked = :checked, reason = NULL, detail = NULL, rank = 0,
    extended = CASE WHEN :state = 3 THEN extended ELSE 0 END, updated_ms = :now
WHERE id = :id AND state = 8 AND reason = 'operator';

-- name: lane_number
-- A configured lane.
SELECT id FROM lane WHERE name = :name AND configured = 1;

-- name: move_sample
-- An operator puts a sample that waits into another lane.
UPDATE sample SET lane_id = :lane_id, updated_ms = :now
WHERE id = :id AND state IN (0, 2) AND lane_id <> :lane_id;

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
