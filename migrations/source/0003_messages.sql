-- Who may write logical messages can have capture copy tables again. PostgreSQL lets every role do it.
-- Grant it to roles of applications that write messages of their own.
revoke execute on function {functions} from public;
grant execute on function {functions} to {role};
