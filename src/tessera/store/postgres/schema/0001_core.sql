-- The core: live jobs, the archive, and what stands beside them, in a schema of their own ({schema}).
--
-- Times are milliseconds. States are the numbers of store/sql/rows.py: 0 pending, 1 scheduled, 2 available, 3 blocked,
-- 4 running, 5 waiting, 6 quarantined, 7 completed, 8 dead, 9 cancelled. "rest" holds, as msgpack, the fields of a job that
-- seldom say anything; NULL = none does.

-- pre

-- The store's clock. The first is one instant a statement, and so an index bound; the second goes on while a statement
-- waits for a lock, and so guards leases.
CREATE FUNCTION {schema}.now_ms() RETURNS bigint LANGUAGE sql STABLE PARALLEL SAFE
    AS $$ SELECT (extract(epoch FROM statement_timestamp()) * 1000)::bigint $$;
CREATE FUNCTION {schema}.clock_ms() RETURNS bigint LANGUAGE sql VOLATILE PARALLEL SAFE
    AS $$ SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint $$;

CREATE TABLE {schema}.meta (
    id smallint PRIMARY KEY DEFAULT 1 CHECK (id = 1),
    installation bytea NOT NULL,
    policy bigint NOT NULL DEFAULT 0,
    events bigint NOT NULL DEFAULT 0
);

-- Rows that are locked and never change: "claim" is held by a claim that looks at counters, "fold" by whoever folds counts,
-- "seal" by whoever numbers events, "probe" shows that a write would get through.
CREATE TABLE {schema}.gate (
    name text PRIMARY KEY
);
INSERT INTO {schema}.gate (name) VALUES ('claim'), ('fold'), ('seal'), ('probe');

-- The hot table. "rev" grows with every write but a renewal: a write made from what a process remembers asserts it.
-- "gated": it has counters, a tenant or a full log, so that only a claim behind the gate may lease it. lease_until is in no
-- index, so that a renewal moves no index entry (HOT).
CREATE TABLE {schema}.job (
    id uuid NOT NULL PRIMARY KEY,
    kind text NOT NULL,
    queue text NOT NULL,
    state smallint NOT NULL,
    np integer NOT NULL,
    pass bigint NOT NULL,
    due bigint NOT NULL,
    fence bigint NOT NULL,
    attempt integer NOT NULL,
    holder text NOT NULL,
    lease_until bigint NOT NULL,
    claimed_at bigint NOT NULL,
    cancel_requested boolean NOT NULL,
    blocked_on text NOT NULL,
    parent uuid,
    expires_at bigint NOT NULL,
    created_at bigint NOT NULL,
    body bytea NOT NULL,
    payload bytea NOT NULL,
    rest bytea,
    gated boolean NOT NULL,
    rev bigint NOT NULL DEFAULT 0
) WITH (
    fillfactor = 80, autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_threshold = 1000,
    autovacuum_vacuum_cost_delay = 0, autovacuum_analyze_scale_factor = 0.05
);
CREATE INDEX job_ready ON {schema}.job (queue, np, pass, due, id) WHERE state = 2;
CREATE INDEX job_scheduled ON {schema}.job (queue, due, id) WHERE state = 1;
CREATE INDEX job_running ON {schema}.job (holder, id) WHERE state = 4;
CREATE INDEX job_blocked ON {schema}.job (blocked_on, state, np, pass, due, id) WHERE blocked_on > '';
CREATE INDEX job_still ON {schema}.job (queue, state, id) WHERE state IN (0, 5, 6);
CREATE INDEX job_expiry ON {schema}.job (expires_at, id) WHERE expires_at > 0 AND state < 4;
CREATE INDEX job_cancel ON {schema}.job (holder, id) WHERE cancel_requested;
CREATE INDEX job_parent ON {schema}.job (parent, id) WHERE parent IS NOT NULL;

-- The archive, by the day a row may go (gone_at, captured at the finish; -1 = never). A duty makes partitions ahead and drops
-- those that are over. "loud": its going has consequences (keys, tags, heirs, a full log), so that it goes by itself.
CREATE TABLE {schema}.done (
    id uuid NOT NULL,
    kind text NOT NULL,
    queue text NOT NULL,
    state smallint NOT NULL,
    np integer NOT NULL,
    due bigint NOT NULL,
    fence bigint NOT NULL,
    attempt integer NOT NULL,
    parent uuid,
    created_at bigint NOT NULL,
    finished_at bigint NOT NULL,
    gone_at bigint NOT NULL,
    reason text NOT NULL,
    last_fence bigint NOT NULL,
    last_end text NOT NULL,
    ends bytea,
    body bytea NOT NULL,
    payload bytea NOT NULL,
    result bytea,
    rest bytea,
    loud boolean NOT NULL,
    PRIMARY KEY (id, gone_at)
) PARTITION BY RANGE (gone_at);
CREATE TABLE {schema}.done_never PARTITION OF {schema}.done FOR VALUES FROM (-1) TO (0);
CREATE TABLE {schema}.done_other PARTITION OF {schema}.done DEFAULT;
CREATE INDEX done_gone ON {schema}.done (gone_at) WHERE loud;
CREATE INDEX done_odd ON {schema}.done (queue, state, id) WHERE state > 7;
CREATE INDEX done_parent ON {schema}.done (parent, id) WHERE parent IS NOT NULL;
-- Rows of no partition of a day go one by one.
CREATE INDEX done_other_gone ON {schema}.done_other (gone_at);

-- Partitions of days that are over and are being counted, so that they can be dropped. Whoever changes a row of one strikes
-- it out here, by the trigger that such a partition has, and the count is made anew.
CREATE TABLE {schema}.closing (
    name text PRIMARY KEY
);
CREATE FUNCTION {schema}.reopen() RETURNS trigger LANGUAGE plpgsql
    AS $$
    BEGIN
        EXECUTE format('DELETE FROM %I.closing WHERE name = $1', TG_TABLE_SCHEMA) USING TG_TABLE_NAME;
        RETURN NULL;
    END
    $$;

-- Rows only for tagged jobs, live or archived.
CREATE TABLE {schema}.job_tag (
    tag text NOT NULL,
    job uuid NOT NULL,
    PRIMARY KEY (tag, job)
);

-- Jobs by queue and state: the last fold, and what came since, one row a commit.
CREATE TABLE {schema}.count (
    queue text NOT NULL,
    state smallint NOT NULL,
    n bigint NOT NULL,
    PRIMARY KEY (queue, state)
);
CREATE TABLE {schema}.count_delta (
    queue text NOT NULL,
    state smallint NOT NULL,
    n bigint NOT NULL
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000, autovacuum_vacuum_cost_delay = 0);

CREATE TABLE {schema}.slot (
    key text NOT NULL PRIMARY KEY,
    owner uuid NOT NULL,
    expires_at bigint NOT NULL
);
CREATE INDEX slot_expiry ON {schema}.slot (expires_at) WHERE expires_at > 0;

-- Counters belong to the claim that holds the gate. Everybody else appends what a move does to them.
CREATE TABLE {schema}.counter (
    key text NOT NULL PRIMARY KEY,
    used bigint NOT NULL,
    ceiling bigint NOT NULL,
    refill bigint NOT NULL,
    capacity bigint NOT NULL,
    unit bigint NOT NULL,
    level bigint NOT NULL,
    level_at bigint NOT NULL,
    closed_until bigint NOT NULL,
    blocked bigint NOT NULL,
    awake bigint NOT NULL,
    wake_at bigint NOT NULL,
    version bigint NOT NULL
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_cost_delay = 0);
CREATE INDEX counter_wake ON {schema}.counter (wake_at) WHERE wake_at > 0;
CREATE INDEX counter_blocked ON {schema}.counter (key) WHERE blocked > 0;
CREATE TABLE {schema}.counter_shift (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    key text NOT NULL,
    used bigint NOT NULL,
    blocked bigint NOT NULL,
    awake bigint NOT NULL,
    refund bigint NOT NULL,
    close_until bigint NOT NULL
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_cost_delay = 0);

CREATE TABLE {schema}.floor (
    queue text NOT NULL,
    priority integer NOT NULL,
    pass bigint NOT NULL,
    PRIMARY KEY (queue, priority)
);
CREATE TABLE {schema}.pass (
    queue text NOT NULL,
    priority integer NOT NULL,
    tenant text NOT NULL,
    pass bigint NOT NULL,
    PRIMARY KEY (queue, priority, tenant)
);

CREATE TABLE {schema}.edge (
    parent uuid NOT NULL,
    child uuid NOT NULL,
    "on" text NOT NULL,
    otherwise text NOT NULL,
    PRIMARY KEY (parent, child)
);
CREATE INDEX edge_child ON {schema}.edge (child, parent);

CREATE TABLE {schema}.record (
    space text COLLATE "C" NOT NULL,
    key text COLLATE "C" NOT NULL,
    version bigint NOT NULL,
    value bytea,
    written_at bigint NOT NULL,
    due_at bigint NOT NULL,
    expires_at bigint NOT NULL,
    PRIMARY KEY (space, key)
);
CREATE INDEX record_due ON {schema}.record (due_at) WHERE due_at > 0;
CREATE INDEX record_expiry ON {schema}.record (expires_at) WHERE expires_at > 0;
CREATE TABLE {schema}.record_history (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    space text COLLATE "C" NOT NULL,
    key text COLLATE "C" NOT NULL,
    version bigint NOT NULL,
    value bytea,
    written_at bigint NOT NULL,
    due_at bigint NOT NULL,
    expires_at bigint NOT NULL
);
CREATE INDEX record_history_key ON {schema}.record_history (space, key, version);

-- The log. An entry gets its position when it is sealed, after its transaction was seen to commit, so that no reader that
-- goes by positions skips one that commits late.
CREATE TABLE {schema}.event (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    pos bigint,
    at bigint NOT NULL,
    what text NOT NULL,
    queue text NOT NULL,
    job uuid,
    number bigint NOT NULL,
    by text NOT NULL,
    data bytea NOT NULL
);
CREATE UNIQUE INDEX event_pos ON {schema}.event (pos) WHERE pos IS NOT NULL;
CREATE INDEX event_unsealed ON {schema}.event (id) WHERE pos IS NULL;
CREATE INDEX event_job ON {schema}.event (job, pos) WHERE job IS NOT NULL;

-- Bytes lie in chunks that never move: publishing an upload rewrites only who refers to them.
CREATE TABLE {schema}.chunk (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    data bytea NOT NULL
);
ALTER TABLE {schema}.chunk ALTER COLUMN data SET STORAGE EXTERNAL;
CREATE TABLE {schema}.staged (
    upload text NOT NULL,
    number integer NOT NULL,
    chunk bigint NOT NULL,
    size bigint NOT NULL,
    staged_at bigint NOT NULL,
    PRIMARY KEY (upload, number)
);
CREATE TABLE {schema}.blob (
    sha256 bytea NOT NULL PRIMARY KEY,
    size bigint NOT NULL,
    published_at bigint NOT NULL
);
CREATE TABLE {schema}.blob_chunk (
    sha256 bytea NOT NULL,
    number integer NOT NULL,
    chunk bigint NOT NULL,
    PRIMARY KEY (sha256, number)
);

-- post

-- down

DROP TABLE {schema}.blob_chunk, {schema}.blob, {schema}.staged, {schema}.chunk, {schema}.event, {schema}.record_history,
    {schema}.record, {schema}.edge, {schema}.pass, {schema}.floor, {schema}.counter_shift, {schema}.counter, {schema}.slot,
    {schema}.count_delta, {schema}.count, {schema}.job_tag, {schema}.closing, {schema}.done, {schema}.job, {schema}.gate,
    {schema}.meta;
DROP FUNCTION {schema}.reopen(), {schema}.clock_ms(), {schema}.now_ms();
