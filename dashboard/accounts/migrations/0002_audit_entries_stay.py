from django.db import migrations

# `cohort.erasing` is set by accounts/erasing.py, for one transaction; DECISIONS.md, 18.
STAY = """
CREATE OR REPLACE FUNCTION audit_entries_stay() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    erasing text := coalesce(current_setting('cohort.erasing', true), '');
BEGIN
    IF TG_OP = 'DELETE' AND erasing = 'team ' || OLD.team_id THEN
        RETURN OLD;
    END IF;
    -- Who it was, from where, and words of the details: never what was done, or when.
    IF TG_OP = 'UPDATE' AND erasing = 'person'
        AND (NEW.actor_id IS NULL OR NEW.actor_id = OLD.actor_id)
        AND (NEW.address IS NULL OR NEW.address = OLD.address)
        AND (NEW.agent = '' OR NEW.agent = OLD.agent)
        AND (NEW.id, NEW.team_id, NEW.verb, NEW.object_type, NEW.object_id,
             NEW.created_at, NEW.program)
          = (OLD.id, OLD.team_id, OLD.verb, OLD.object_type, OLD.object_id,
             OLD.created_at, OLD.program)
    THEN
        IF NEW.actor_id IS NULL AND OLD.actor_id IS NOT NULL THEN
            NEW.address := NULL;
            NEW.agent := '';
            NEW.is_erased := true;
        END IF;
        RETURN NEW;
    END IF;
    RAISE EXCEPTION 'Entry % of the audit log stays as it is: % is refused.',
        OLD.id, TG_OP
        USING ERRCODE = 'restrict_violation',
              HINT = 'See dashboard/operations/personal_data.py for what may erase entries.';
END $$;

CREATE OR REPLACE TRIGGER audit_entries_stay
BEFORE UPDATE OR DELETE ON accounts_auditentry
FOR EACH ROW EXECUTE FUNCTION audit_entries_stay();
"""
LET_GO = """
DROP TRIGGER audit_entries_stay ON accounts_auditentry;
DROP FUNCTION audit_entries_stay();
"""


class Migration(migrations.Migration):
    dependencies = [("accounts", "0001_initial")]

    operations = [migrations.RunSQL(STAY, LET_GO)]
