\set one random(2, 10000)
\set amount random(1, 100)
select transfer(gen_random_uuid(), :one, 1, :amount);
