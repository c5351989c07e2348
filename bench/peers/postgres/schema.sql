-- The ledger's transfer as one SQL function: idempotent by id, double-entry, no overdraft, refusals recorded.
create table accounts (
    id bigint primary key,
    currency text not null,
    debits bigint not null default 0,
    credits bigint not null default 0,
    overdraft boolean not null default false
);
create table transfers (
    id uuid primary key,
    debit_account bigint not null,
    credit_account bigint not null,
    amount bigint not null check (amount > 0),
    result text not null,
    debit_balance bigint,
    credit_balance bigint,
    made timestamptz not null default now()
);
create index on transfers (debit_account, made);
create index on transfers (credit_account, made);

create function transfer(p_id uuid, p_debit bigint, p_credit bigint, p_amount bigint) returns transfers
language plpgsql as $$
declare
    known transfers;
    giver accounts;
    taker accounts;
    outcome transfers;
begin
    select * into known from transfers where id = p_id;
    if found then
        if (known.debit_account, known.credit_account, known.amount) <> (p_debit, p_credit, p_amount) then
            raise exception 'id conflict';
        end if;
        return known;
    end if;
    -- Always in the order of ids, so that two transfers never deadlock.
    perform 1 from accounts where id in (p_debit, p_credit) order by id for update;
    select * into giver from accounts where id = p_debit;
    select * into taker from accounts where id = p_credit;
    if giver.id is null or taker.id is null or giver.currency <> taker.currency
        or (not giver.overdraft and giver.debits + p_amount > giver.credits) then
        insert into transfers values (p_id, p_debit, p_credit, p_amount, 'refused', null, null)
            on conflict (id) do nothing returning * into outcome;
        return outcome;
    end if;
    insert into transfers
        values (p_id, p_debit, p_credit, p_amount, 'ok', giver.credits - giver.debits - p_amount,
            taker.credits - taker.debits + p_amount)
        on conflict (id) do nothing returning * into outcome;
    if outcome.id is null then
        -- Another session has inserted the same id.
        select * into known from transfers where id = p_id;
        return known;
    end if;
    update accounts set debits = debits + p_amount where id = p_debit;
    update accounts set credits = credits + p_amount where id = p_credit;
    return outcome;
end
$$;

insert into accounts (id, currency, overdraft, credits)
    select number, 'EUR', false, 1000000000000 from generate_series(1, 10000) as number;
