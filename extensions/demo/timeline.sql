-- A small network beside the shop: who follows whom, and what they tweet.

create table users (
    id bigint generated always as identity primary key,
    name text not null
);

create table follows (
    follower_id bigint references users,
    followee_id bigint references users,
    primary key (follower_id, followee_id)
);

create table tweets (
    id bigint generated always as identity primary key,
    user_id bigint not null references users,
    body text not null check (length(body) between 1 and 280),
    created_at timestamptz not null default clock_timestamp()
);

-- What the foreign keys and the writer search by.
create index on follows (followee_id);
create index on tweets (user_id);
