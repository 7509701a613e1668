-- The sample shop. Keys of every kind: uuid, text that changes, identity, composite.

create type order_status as enum ('cart', 'paid', 'packed', 'shipped', 'delivered', 'returned');

create domain country as text check (value ~ '^[A-Z]{2}$');

create table customers (
    id uuid primary key,
    email text not null,
    name text not null,
    country country not null,
    tags text[] not null default '{}',
    profile jsonb not null default '{}',
    newsletter boolean not null,
    credit numeric(12, 2) not null default 0,
    birthday date,
    created_at timestamptz not null default now()
);

create table products (
    sku text primary key,
    title text not null,
    description text not null,
    price numeric(10, 2) not null check (price >= 0),
    weight_kg double precision,
    attributes jsonb not null default '{}',
    categories text[] not null default '{}',
    sizes smallint[],
    active boolean not null default true,
    thumbnail bytea,
    available_until timestamptz,
    updated_at timestamptz not null default now()
);

create table orders (
    id bigint generated always as identity primary key,
    customer_id uuid not null references customers on update cascade,
    status order_status not null default 'cart',
    total numeric(14, 2) not null default 0,
    note text,
    ship_to jsonb,
    express boolean not null default false,
    delivery_hours int4range,
    placed_at timestamptz not null default now(),
    delivered_on date
);

create table order_items (
    order_id bigint references orders on delete cascade,
    line smallint,
    sku text not null references products on update cascade,
    quantity integer not null check (quantity > 0),
    unit_price numeric(10, 2) not null,
    discount numeric not null default 0,
    gift boolean not null default false,
    primary key (order_id, line)
);

-- What the foreign keys search by.
create index on orders (customer_id);
create index on order_items (sku);

-- Long texts and JSON are stored out of line, and the WAL leaves them out of an update that doesn't touch them. With the whole old
-- row in the WAL they are there nevertheless. order_items has nothing long and keeps the default.
alter table customers replica identity full;
alter table products replica identity full;
alter table orders replica identity full;
