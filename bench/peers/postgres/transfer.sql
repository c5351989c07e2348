\set one random(1, 10000)
\set step random(1, 9999)
\set other (:one + :step - 1) % 10000 + 1
\set amount random(1, 100)
select transfer(gen_random_uuid(), :one, :other, :amount);
