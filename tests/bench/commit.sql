\set number random(1, 9000000000000000000)
insert into commit_probe (key) values ('evt_' || :number || '_' || :client_id) on conflict do nothing returning key;
